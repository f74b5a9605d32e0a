"""What passes cost on this machine: measured once, kept in the user's cache folder, given to the policy.

`costs_of(engine, head, key)` is all that a loaded pair needs; `make_policy(engine, costs)` turns the result into a
`Policy`.
"""

from .best_chain import BestChain, best_chain
from .cache import load_costs, save_costs
from .contention import CONTENTION_MAX, Contention
from .costs import Costs, DraftCosts, implausible, machine
from .priors import keep_priors
from .setup import brought, costs_of, experts_of, have_policy, keep_corrections, make_policy, measure_types, why_not
from .timing import is_idle, measure

__all__ = [
    "CONTENTION_MAX",
    "BestChain",
    "Contention",
    "Costs",
    "DraftCosts",
    "best_chain",
    "brought",
    "costs_of",
    "experts_of",
    "have_policy",
    "implausible",
    "is_idle",
    "keep_corrections",
    "keep_priors",
    "load_costs",
    "machine",
    "make_policy",
    "measure",
    "measure_types",
    "save_costs",
    "why_not",
]
