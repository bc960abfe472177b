@rem Lets cmd.exe run the "start" script of package.json, which starts with `exec`, a builtin of POSIX shells.
@%*
