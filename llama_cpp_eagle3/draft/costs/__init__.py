"""What passes cost on this machine: measured once, kept in the user's cache folder, given to the policy.

`learn_costs(pair)` is all that a loaded pair needs: its policy plans by the result, `engine.drafting.learn(...)`.
"""

from .best_chain import BestChain, best_chain
from .cache import load_costs, save_costs
from .contention import CONTENTION_MAX, Contention
from .costs import Costs, DraftCosts, implausible, machine
from .priors import Priors, prior_of_family
from .setup import Timed, costs_of, experts_of, keep_learned, learn_costs, measure_types
from .timing import is_idle, measure

__all__ = [
    "CONTENTION_MAX", "BestChain", "Contention", "Costs", "DraftCosts", "Priors", "Timed", "best_chain", "costs_of",
    "experts_of", "implausible", "is_idle", "keep_learned", "learn_costs", "load_costs", "machine", "measure",
    "measure_types", "prior_of_family", "save_costs",
]  # fmt: skip
