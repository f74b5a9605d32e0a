"""What passes cost on this machine: measured once, kept in the user's cache folder, given to the planner.

`costs_of(llm)` is all that a loaded `Eagle3Llama` needs; `make_planner(llm, costs)` turns the result into a `Planner`.
"""

from .cache import cache_dir, load_costs, save_costs
from .costs import Costs, costs_key
from .setup import costs_of, make_planner, measure_types
from .timing import measure

__all__ = [
    "Costs",
    "cache_dir",
    "costs_key",
    "costs_of",
    "load_costs",
    "make_planner",
    "measure",
    "measure_types",
    "save_costs",
]
