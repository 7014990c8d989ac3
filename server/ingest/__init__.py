"""Long prompts on their way in: read, parsed, checked and tokenized without holding up the event loop."""
