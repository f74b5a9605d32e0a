"""CrewAI.

from crewai import Agent, Crew, LLM, Task
llm = LLM(model="openai/any", base_url="http://localhost:8080/v1", api_key="none")
Agent(role="writer", goal="write", backstory="", llm=llm)
"""

from __future__ import annotations

import os

from checks import V1

os.environ |= {"CREWAI_DISABLE_TELEMETRY": "true", "OTEL_SDK_DISABLED": "true", "CREWAI_TRACING_ENABLED": "false"}

from crewai import LLM, Agent, Crew, Task


def crew() -> None:
    llm = LLM(model="openai/any", base_url=V1, api_key="none", max_tokens=200)
    agent = Agent(role="greeter", goal="greet people", backstory="You are friendly.", llm=llm, max_iter=2)
    task = Task(description="Say hello to Ada.", expected_output="a greeting", agent=agent)
    assert Crew(agents=[agent], tasks=[task]).kickoff().raw
