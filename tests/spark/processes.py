"""What tests have in common that run Spark in processes of their own."""

from pathlib import Path

# Made by tests/spark/class_archive.py.
CLASS_ARCHIVE = Path(__file__).resolve().parents[2] / "build" / "spark-classes.jsa"

# A short run is over before the better compiler of the JVM pays, or a collector with threads of its
# own. Most of its time is the loading of Spark's classes, which need not be verified.
JAVA_OPTIONS = (
    "-XX:TieredStopAtLevel=1",
    "-XX:+UseSerialGC",
    "-XX:+UnlockDiagnosticVMOptions",
    "-XX:-BytecodeVerificationRemote",
)
# An archive that does not fit this JVM or its class path is not used, and not spoken of.
_ARCHIVE_OPTIONS = (f"-XX:SharedArchiveFile={CLASS_ARCHIVE}", "-Xshare:auto", "-Xlog:cds*=off")
_OPTIONS = (*JAVA_OPTIONS, *(_ARCHIVE_OPTIONS if CLASS_ARCHIVE.exists() else ()))
QUICK_JAVA = {"spark.driver.extraJavaOptions": " ".join(_OPTIONS)}
# The same for a command that does not take it as an argument.
QUICK_ENVIRONMENT = {"JDK_JAVA_OPTIONS": " ".join(_OPTIONS)}
QUICK_START = [word for name, value in QUICK_JAVA.items() for word in ("--conf", f"{name}={value}")]
