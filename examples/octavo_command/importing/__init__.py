"""`octavo import`: reads the configuration of another trainer and writes Octavo's.

sources.py reads files and command lines into settings, and shell.py evaluates scripts for it. Each trainer has a
module with a table, which has a row (rows.py) for every key. run.py collects the results, and derive.py computes the
flags that depend on several keys. mistakes.py detects settings that do not do what they suggest. report.py prints the
results and the TOML.
"""
