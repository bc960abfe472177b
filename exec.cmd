@rem Lets cmd.exe run the "start" script of package.json, which begins with the word exec of POSIX shells.
@%*
