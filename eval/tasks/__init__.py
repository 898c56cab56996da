"""What is a method asked, how does the reader answer, and how good is the answer?"""
