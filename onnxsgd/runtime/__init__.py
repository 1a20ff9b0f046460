"""The runtime: installed editions, devices, sessions, and their cache."""
