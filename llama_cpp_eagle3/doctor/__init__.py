"""Check the machine, the installation, a pair and its costs: what is right, what is wrong, what to do."""

from .conversation_costs import check_conversation
from .finding import Finding
from .installation import devices, software
from .pair_check import Prospect, check_files, check_loaded, prospects

__all__ = [
    "Finding", "Prospect", "check_conversation", "check_files", "check_loaded", "devices", "prospects", "software",
]  # fmt: skip
