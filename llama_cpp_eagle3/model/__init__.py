"""From the constructor's arguments and files to a running model: the engine on a target and its drafters."""
