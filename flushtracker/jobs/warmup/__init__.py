"""Spark's start in less time: lets both jobs run once, on a broker of their own, and archives the classes they load."""
