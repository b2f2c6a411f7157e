def register_model(name):
    return lambda kind: kind
