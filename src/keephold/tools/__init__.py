"""What runs: functions, commands, built-ins, behind one seam."""
