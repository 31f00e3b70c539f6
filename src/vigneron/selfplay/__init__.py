"""Games of several roles that the policy plays against itself or others."""
