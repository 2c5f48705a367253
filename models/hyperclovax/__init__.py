"""HyperCLOVA X SEED Think: Granite's scaled blocks with norms behind attention and MLP, too (NAVER 2025)."""
