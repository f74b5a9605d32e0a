"""Drafters: the kinds of their files, how they are loaded, and what drafting costs on this machine."""
