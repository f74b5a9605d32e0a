"""Small drafters of other kinds for the bundled target: an MTP block, a block drafter, and a hybrid target."""
