"""KV connectors: blocks of different sets apart in stores and transfers."""
