"""What is well here, what is not, and what to do about it: the machine, what is installed, a pair, its costs."""

from .finding import Finding
from .machine import devices, software
from .pair import Prospect, check_files, check_loaded, prospects

__all__ = ["Finding", "Prospect", "check_files", "check_loaded", "devices", "prospects", "software"]
