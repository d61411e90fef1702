"""Our models in other people's programs: a module for each, imported only by those who want it."""
