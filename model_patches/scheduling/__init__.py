"""Plans steps by their predicted time, and reports prefills' progress. Knows the switch's scheduler and placements."""
