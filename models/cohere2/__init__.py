"""Command R, Command R7B, Command A and Command A+: attention and MLP, or experts, side by side behind one norm without
a bias."""
