"""From logits to text: sampler, token loop, text stream, tokenizer, chat template, and the Model over them."""
