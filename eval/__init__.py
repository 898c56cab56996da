"""What was gained?"""
