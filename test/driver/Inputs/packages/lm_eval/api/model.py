class LM:
    def __init__(self):
        pass
