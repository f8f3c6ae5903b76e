"""From what `-m` names (a GGUF file, a preset, a Hugging Face config) to a `Model`: `load.load_model` is the way in."""
