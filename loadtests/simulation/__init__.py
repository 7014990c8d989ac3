"""Real schedulers over a cost model instead of an engine, in virtual time; docs/simulation.md."""
