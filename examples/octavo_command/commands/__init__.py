"""The subcommands, one module each, see dispatch.py."""
