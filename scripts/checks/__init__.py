"""The checks of scripts/check, a module per topic."""
