"""Ministral 3: Llama with positions stretched by YaRN, and queries that grow with their place."""
