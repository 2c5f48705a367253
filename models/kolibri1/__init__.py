"""Kolibri 1: GLM-4's norms around EXAONE 4's attention, and around experts for whose choice logits have a bias."""
