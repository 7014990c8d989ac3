"""Plans steps by their predicted time. Knows the switch's scheduler and placements."""
