"""The trained model: loading, forward passes, log-probs, chat templates, reference, critic, reward models."""
