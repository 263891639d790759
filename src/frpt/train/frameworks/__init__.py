"""Feature supervision inside the training loops of others: Lightning and the Hugging Face Trainer.

Nothing here is loaded before it is asked for: frpt depends on neither.
"""
