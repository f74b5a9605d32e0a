"""What passes cost on this machine: measured once, kept in the user's cache folder, given to the policy.

`costs_of(engine, head, key)` is all that a loaded pair needs; `engine.drafting.learn(costs.priced())` lets its policy
plan by them.
"""

from .best_chain import BestChain, best_chain
from .cache import load_costs, save_costs
from .contention import CONTENTION_MAX, Contention
from .costs import Costs, DraftCosts, implausible, machine
from .priors import keep_priors
from .setup import costs_of, experts_of, keep_corrections, learn_costs, measure_types
from .timing import is_idle, measure

__all__ = [
    "CONTENTION_MAX",
    "BestChain",
    "Contention",
    "Costs",
    "DraftCosts",
    "best_chain",
    "costs_of",
    "experts_of",
    "implausible",
    "is_idle",
    "keep_corrections",
    "keep_priors",
    "learn_costs",
    "load_costs",
    "machine",
    "measure",
    "measure_types",
    "save_costs",
]
