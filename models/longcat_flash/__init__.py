"""LongCat-Flash: blocks of two latent attentions and two dense MLPs, with experts beside the first of these, some of
which hand a token back as it is (Meituan LongCat Team 2025, arXiv 2509.01322)."""
