"""Drafters of a user: kinds of files, how they are loaded, and what drafting costs on this machine."""
