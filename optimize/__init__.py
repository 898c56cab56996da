"""How does a prompt become a better one? GEPA on the environment, the reward and the questions of training."""
