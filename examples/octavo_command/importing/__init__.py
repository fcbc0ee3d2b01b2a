"""`octavo import`: reads the configuration of another trainer and writes Octavo's.

sources.py reads files and command lines into settings. Each trainer has a module with a table, which has a row
(rows.py) for every key. run.py collects the answers, and derive.py computes the flags that depend on several keys.
mistakes.py names configurations that do something else than they say. report.py prints the answers and the TOML.
"""
