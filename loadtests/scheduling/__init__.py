"""The benchmark of length-aware scheduling: its engines, workloads, measurements and report."""
