"""Our models in other libraries: one module for each library, imported only by its users."""
