"""The paper's Table 1, for both sides of the PGSRM comparison."""

ENTROPY_COEFFICIENT = 0.01
VALUE_COEFFICIENT = 0.5
CRITIC_LEARNING_RATE = 1e-4
ALPHA = 4.0
