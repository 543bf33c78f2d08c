"""One process per model instance: maps tensors, runs the model, answers. Never schedules."""
