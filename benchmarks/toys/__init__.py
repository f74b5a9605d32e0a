"""Small drafters of other kinds for the bundled target, and a hybrid target: their modules and files."""
