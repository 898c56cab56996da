"""A reader answers from what each system found: whose answers are right?"""
