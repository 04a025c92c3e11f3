"""Agents, the coordinator, and how the two talk. The only place that imports aiohttp."""
