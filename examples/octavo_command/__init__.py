"""The command `octavo`. Each module in commands/ is a subcommand, see dispatch.py."""
