"""Tools: functions, commands, terminals, remote tools and built-ins, behind one seam."""
