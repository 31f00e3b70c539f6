"""What the model talks with over several turns: games, tools, other players. `reply` has the interface."""
