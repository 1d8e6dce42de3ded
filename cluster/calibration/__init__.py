"""How far is the cost model from measurements, and which constants bring it closer?"""
